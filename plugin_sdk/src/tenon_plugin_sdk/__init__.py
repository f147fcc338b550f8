"""What a hardware vendor develops a Tenon platform with."""
