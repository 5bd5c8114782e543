"""What the black-box tests stand on: a broker process, a raw MQTT client, an account of messages.

Nothing here imports foldmq: it judges the broker by the standard only.
"""
