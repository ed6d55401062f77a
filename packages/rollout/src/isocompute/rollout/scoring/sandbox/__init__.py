"""Processes that score: limited in time and memory, cut off from files and network, killed and replaced.

An engine's process (``process``, ``pool``) starts ``boot``, which becomes three kinds of process:

* the ``launcher`` sets up what needs privileges (``layers.enter``), watches the memory of what executes responses
  (``watch``), and ends everything with the engine;
* the ``nursery`` loads the library that scores, gives up its rights (``layers.restrict``) and forks workers, one
  after another: a worker that dies is replaced within milliseconds;
* the ``worker`` reads groups of responses and writes one line for each response (``frames``). What a rule may execute
  it scores in a ``child`` of its own, which is killed with all its descendants before the next response.
"""
