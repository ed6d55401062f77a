"""Scoring processes: limited in time and memory, cut off from files and network, killed and replaced.

An engine's process (``process``) starts ``boot``, which becomes three kinds of process (``child``):

* the launcher enters the layers that need privileges (``layers.enter``), watches the memory of responses (``Watch``),
  and ends everything with the engine;
* the nursery loads the scoring library, gives up its rights (``layers.restrict``) and forks workers one after another:
  a worker that dies is replaced within milliseconds;
* the worker reads groups of responses and writes one line per response (``frames``). If a rule may execute a response,
  the worker scores it in a child, which is killed with all its descendants before the next response.
"""
