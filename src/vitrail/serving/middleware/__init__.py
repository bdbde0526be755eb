"""What stands around the routes: who may ask, limits of a request's body, security headers, slow connections."""
