"""Transactional messages.

`book` and `conversion` are pure, `service` is what uses them in a broker. A half message is stored
in RMQ_SYS_TRANS_HALF_TOPIC and no consumer sees it. Its end is one frame: the message for its real
topic (if it was committed) and an *op* record in RMQ_SYS_TRANS_OP_HALF_TOPIC that names the half's
queue offset. So a half ends once, or not yet, whoever leads and however often it is asked for; and
the two topics, which are Apache's, hold all there is to know: a new leader reads them from where
every older half has ended (offsets of the group CID_RMQ_SYS_TRANS).
"""
