"""`mqbroker rescue`: the histories of a group's stores side by side, and which of them goes on."""
