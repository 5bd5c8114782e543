"""The dictionary with which the JSON of records is deflated: what most events have in common.

Frequent events come last, since the end is what deflate refers to most cheaply. It was chosen by
deflating records of various loads, with random names. Every log depends on it: it never changes. A
better one would be another dictionary, with a flag of its own in the record.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

DICTIONARY: Final[bytes] = (
    b'"through":"link":"leader":"epoch":"begun":"checkpoint":"CheckpointBegun",'
    b'"CheckpointCompleted","MessagesCarried","LogCut","LogArchived","OperatorActed",'
    b'"WebAccessed","LeaderProved","ClockJumped","LogEndUnproven","RetainedCleared",'
    b'"RetainedExpired","SubscriptionDenied","InboundReplaced","BrokerStopped",'
    b'"SessionTakenOver","WillFired","MessageDropped","Redelivered","Bridged","Assigned",'
    b'"Returned",{"log":"","through":"link":"","e":"Followed","v":1},'
    b'{"software":"0.1.0","e":"BrokerStarted","v":1},{"limits":{"max_queued_messages":100000,'
    b'"max_queued_bytes":"max_ack_pending":"max_outbound_bytes":"session_expiry":"retain_available":true},'
    b'"permissions":"","users":"","elsewhere":true,"e":"LimitsApplied","v":1},'
    b'{"session":"","state":{"connected":true,"clean":false,"level":4,"generation":1,'
    b'"expiry":null,"opened_ms":17"closed_ms":17"subscriptions":[["",1]],"queues":[[0,1]],'
    b'"inflight":[[1,"inbound":[[]]},"part":0,"last":true,"e":"SessionSnapshot","v":1},'
    b'{"topics":[""],"qos":[1,0],"refs":["sizes":["at":0,"count":1,"blocks":[],"block_of":[],'
    b'"e":"RetainedSnapshot","v":1},{"session":"","topic":"","qos":1,"retain":false,'
    b'"size":"at":0,"delay":0,"properties":null,"e":"WillArmed","v":1},'
    b'{"session":"","e":"WillCancelled","v":1},{"session":"","reason":"expired",'
    b'"e":"SessionExpired","v":1},{"session":"","filters":[""],"e":"Unsubscribed","v":1},'
    b'{"session":"","filter":"","queued":"refs":[],"reason":"queue_messages","count":1,'
    b'"e":"MessageDropped","v":1},{"session":"","pids":[],"reasons":[],"e":"Received","v":1},'
    b'{"session":"","pids":[1],"e":"Completed","v":1},{"session":"","pids":[],"cause":"resumed",'
    b'"e":"Redelivered","v":1},{"session":"","pids":[1],"refs":[1],"e":"Released","v":1},'
    b'{"session":"","filter":"","qos":1,"refs":[[1,1]],"size":64,"retain":false,"e":"Queued",'
    b'"v":1},{"session":"","generation":1,"e":"SessionTakenOver","v":1},'
    b'{"session":"","reason":"closed","generation":1,"e":"SessionClosed","v":1},'
    b'{"session":"","reason":"disconnect","generation":1,"e":"SessionClosed","v":1},'
    b'{"session":"","resumed":true,"clean":false,"resumed":false,"clean":true,"level":5,'
    b'"keep_alive":60,"generation":1,"address":"127.0.0.1:5192.168.1.","user":null,"expiry":null,'
    b'"properties":null,"clean_start":true,"receive_maximum":"packet_maximum":"via":"",'
    b'"e":"SessionOpened","v":1},{"session":"","filters":[["",1]],"properties":null,'
    b'"e":"Subscribed","v":1},{"session":"","qos":1,"retain":true,"topics":["",""],"which":[],'
    b'"pids":[1],"sizes":[],"at":0,"count":1,"will":false,"properties":null,"blocks":[],'
    b'"block_of":[],"e":"MessagePublished","v":1},{"session":"","filter":"","qos":1,"pids":[[1,2,'
    b'1]],"refs":[[1,2,1]],"retain":false,"queued":-1,"e":"Delivered","v":1},'
    b'{"session":"","pids":[1],"reasons":[],"e":"Acked","v":1},{"sessions":[""],"by":[],'
    b'"pids":[1],"refs":[1],"e":"TurnReleased","v":1},{"kind":"Received","sessions":[""],"by":[],'
    b'"pids":[1],"e":"TurnAcked","v":1},{"kind":"Completed","sessions":[""],"by":[],"pids":[1],'
    b'"e":"TurnAcked","v":1},{"sessions":["",""],"by":[],"qos":2,"topics":["",""],"which":[],'
    b'"pids":[],"sizes":[],"at":0,"count":2,"e":"TurnPublished","v":1},'
    b'{"sessions":["",""],"filters":["",""],"by":[],"qos":2,"pids":[[1,1,1]],"refs":[[1,1,1]],'
    b'"e":"TurnDelivered","v":1}]}{"node":"","time":17","part":0,"last":true,'
    b'"events":[{"session":"","{"node":"","time":1796000000000,"part":0,"last":true,'
    b'"events":[{"kind":"Acked","sessions":["","","","",""],"by":[],"pids":[1,1],"e":"TurnAcked",'
    b'"v":1},{"sessions":["",""],"by":[],"qos":1,"topics":["",""],"which":[],"pids":[[1,1,1]],'
    b'"sizes":64,"at":0,"count":1,"e":"TurnPublished","v":1},{"sessions":["",""],"filters":["",'
    b'""],"by":[],"qos":1,"pids":[[1,1,1]],"refs":[[1,1,1]],"e":"TurnDelivered","v":1}]}'
)
_SHA256: Final = "3f8f2dca2a2818480d78729213d18d98de0e7bab3d7f0858f56496c9be5023f1"

if sha256(DICTIONARY).hexdigest() != _SHA256:
    raise ImportError("the dictionary of records was changed: no log could be read with it")
