"""Models by short names and files of a hub: found, downloaded, checked and kept."""
