"""One of the processes of a run: it joins the others, does the work, says how it ended."""
