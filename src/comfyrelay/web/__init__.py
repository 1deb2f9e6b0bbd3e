"""Pages, as files that are served as they are."""
