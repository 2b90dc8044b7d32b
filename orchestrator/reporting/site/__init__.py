"""mode=site: a folder of static pages from many datasets, for any web server, any pages host, or a browser alone.

`build` makes it, `target` is the folder, `datasets` reads each dataset once, `pages` are those with a dashboard each, `history` has
the times of a point over dates and versions, `pairs` the comparisons of devices and versions, `markup` what all pages look like.
"""
