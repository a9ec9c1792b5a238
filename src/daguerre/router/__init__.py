"""The router: which backend serves a request, so that it is good enough, in time, and costs least."""
