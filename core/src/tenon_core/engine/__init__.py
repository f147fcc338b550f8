"""Start-up, scheduler, block allocator, prefix cache, the step loop and output routing."""
