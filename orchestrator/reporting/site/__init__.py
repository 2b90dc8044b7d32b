"""mode=site: a folder of static pages from many datasets, for any web server, any pages host, or a browser alone.

`build` makes it, `target` is the folder, `datasets` reads each dataset once, `history` has the times of a point over dates and
versions, `pairs` the comparisons of GPUs and versions. Pages without a dashboard are Markdown until they are written.
"""
