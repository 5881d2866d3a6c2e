"""Every usage line linked to the one before: a tenant can check that none was changed or removed."""
