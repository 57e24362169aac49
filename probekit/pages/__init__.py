"""Plain values as pages: HTML and Markdown from templates, pictures as SVG."""
