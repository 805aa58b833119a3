"""Timer messages (TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS): delivery at any time."""
