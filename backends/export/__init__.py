"""How figures are shown: tables, JSON, CSV, Markdown, HTML and Graphviz pictures."""
