"""What keeps a database running: threads, Spark, the catalog, and taking over from another server.

operation.py      starts and stops the parts, moves them to another Spark, takes over from another server
start_times.py    how long the steps of a start take
spark_work.py     what Spark does for the coordinator: epochs' steps, merges; and what runs before there is one
core.py           makes what the parts share
live_state.py     relations, jobs and epochs in memory, and the lock that guards them
storage.py        where all lies that is durable: the catalog, the objects, who holds them
runtime.py        by which settings and which clock it runs, and whether it goes on
locks.py          the locks that are held over I/O, and the order of all locks
application.py    the Spark application: whether there is one, what came of planning in it
capacity.py       what may be used at once: slots, tasks, memory
epochs.py         who may still write at which epoch, and which epoch is complete
ticker.py         allocates an epoch at each tick and binds the sources
telling.py        tells sources that are paused how far their readers are
lanes.py          the threads of lanes
driver.py         one lane's thread: waits, runs steps, commits, retries
readiness.py      when a lane may open its next epoch, and when it has to commit
lane_failures.py  what becomes of a lane's jobs when an epoch fails
regroup.py        makes durable who of a group moves in step, or takes it back
attempt.py        one step of a job as Spark runs it
committer.py      commits a lane's epochs in order, beside the next one's run
accounts.py       what committed epochs are counted as and told by
waiting.py        who waits for the coordinator to get on, and who wakes whom
guard.py          keeps background work going: failures are told, counted, tried again
pins.py           epochs and objects that are in use
lease_keeper.py   renews the active server's lease
standby.py        follows the catalog, serves reads, watches the lease
mirror.py         relations and jobs, made of a catalog that another server writes
"""
