"""One image: decoded, transformed, in memory."""
