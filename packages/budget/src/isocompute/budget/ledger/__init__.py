"""What was generated: counted, kept in a file that survives crashes, summed up, and held against limits."""
