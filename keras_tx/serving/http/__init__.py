"""An HTTP server for exported folders: `keras-tx serve`, and the same application for other ASGI servers.

Only this package imports starlette, uvicorn and prometheus-client: pip install "keras-tx[serve]".
"""
