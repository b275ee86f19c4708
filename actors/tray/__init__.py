"""The tray: a page that shows what happens in a runtime. It is plain HTML, CSS and JavaScript, and reads what the gateway tells."""
