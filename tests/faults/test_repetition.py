"""The same request again, or too late, has a typed outcome and no second effect (F-25)."""
