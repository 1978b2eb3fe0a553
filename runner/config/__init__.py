"""Every way to a Config."""
