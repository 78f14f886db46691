"""What people and system relations are told of the coordinator.

status.py           the coordinator's state as system relations show it
obstacles.py        what keeps a read from a newer snapshot, as errors and notices
arrival.py          waiting for jobs: to be created, to have reached an epoch
progress.py         what tasks report of attempts that are under way
progress_server.py  the TCP listener for these reports
watchdog.py         what each barrier waits for
epoch_history.py    newest checkpoints, rows read over edges, time paused
metrics.py          counters as named numbers
sparing.py          bounds how many events tell of one thing
inspection.py       what a database's state consists of, and whether it is sound
"""
