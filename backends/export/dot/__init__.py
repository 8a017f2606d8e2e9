"""Pictures of a report or workload, drawn by Graphviz."""
