"""Python imports this file first of all where this folder is on its path, as in all processes that tests start."""

import quick_ray

quick_ray.in_programs_of_ray()
