"""The web console: pages rendered on the server from the same services that the control API uses."""
