"""The report: one self-contained HTML file for each problem set."""
