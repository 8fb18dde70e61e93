"""ASGI middlewares in front of the routes, one class a file.

app.py puts them in this order: path, Host and Origin, CORS, API key, body, log. They are plain ASGI, so that streams
pass unchanged. access.py decides who may do what.
"""
