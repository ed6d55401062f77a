"""The commands of ``isocompute-budget``, one module each: ``add`` declares its arguments, ``run`` prints its lines."""
