"""What joins the loss of a supervised step beside the labels: a teacher's answers, pictures without labels."""
