"""The report: one self-contained HTML file that can be read without the paper."""
