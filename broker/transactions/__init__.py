"""Transactional messages, from half message to commit or rollback.

A half message is stored in RMQ_SYS_TRANS_HALF_TOPIC, hidden from consumers. A single frame ends it.
It holds the message for the real topic, if committed, and an *op* record in
RMQ_SYS_TRANS_OP_HALF_TOPIC with the half's queue offset. So a half message ends at most once under
any leader. Both topics are Apache's and hold the complete state. A new leader reads them from the
offsets of the group CID_RMQ_SYS_TRANS, before which all halves have ended.
"""
