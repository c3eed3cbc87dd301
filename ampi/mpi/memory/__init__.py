"""The memory of messages: buffers, datatypes, Python objects, and the memory of their adjoints and tangents."""
