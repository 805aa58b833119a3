"""The forms of a message: as sent, as a timer or half message waits, and as stored."""
