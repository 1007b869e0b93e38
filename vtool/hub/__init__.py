"""Models by their names on a hub: found in its cache, downloaded, pushed. No torch here."""
