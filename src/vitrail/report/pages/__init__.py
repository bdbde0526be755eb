"""One file a page, and how every page is rendered."""
