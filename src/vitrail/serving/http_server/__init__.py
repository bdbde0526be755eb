"""uvicorn, with timeouts for slow connections and a shutdown that finishes the requests in progress."""
