"""One module per page: parse the query, call a service, render."""
