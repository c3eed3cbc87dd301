"""IR -> facts: what is known of a kernel; nothing here changes a program, but for marks on loops."""
