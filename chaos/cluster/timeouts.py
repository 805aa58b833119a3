"""How long the harness waits for a cluster, in seconds."""

UP_TIMEOUT_S = 120.0  # 2 s on an idle machine; a process that has ended is not waited for
DOWN_TIMEOUT_S = 60.0  # for an orderly end, before SIGKILL
GONE_TIMEOUT_S = 60.0  # for the system to bury a killed process
FIND_TIMEOUT_S = 30.0  # for a leader: many elections long
CHANGE_TIMEOUT_S = 180.0  # for a learner's catching up, above all
