"""Point-to-point messages: requests, partitioned communication, tangents and second derivatives."""
