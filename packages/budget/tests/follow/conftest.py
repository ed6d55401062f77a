import signal

# What a script starts in the background ignores SIGINT, and so would the commands that are followed.
signal.signal(signal.SIGINT, signal.default_int_handler)
