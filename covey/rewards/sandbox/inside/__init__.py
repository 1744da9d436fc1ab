"""Code of the zygote and its children: the standard library and nothing else of Covey.

The zygote is started with this folder's parent on its path, so modules here import each other relatively.
"""
