"""The dashboard: a page that shows what happens in a runtime. It is plain HTML, CSS and JavaScript, and reads what the gateway tells.

Browsers take its modules as they are: what is in the wheel is what was written, and nothing has to be built or fetched."""
