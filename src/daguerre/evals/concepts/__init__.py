"""What a concept model can do, measured beside controls: one file for each part, and a report with the bars."""
