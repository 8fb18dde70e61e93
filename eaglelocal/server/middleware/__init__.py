"""ASGI middlewares in front of the routes, one class a file.

A request passes them in this order (app.py): path, access log, Host and Origin, CORS, API key, body, call limit. They
are plain ASGI, so that streams pass unchanged; only HTTP comes to them. access.py decides who may do what.
"""
