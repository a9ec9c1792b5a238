"""What the server and the router share: the gate before all routes, errors, keys, logs, pages and /openapi.json."""
