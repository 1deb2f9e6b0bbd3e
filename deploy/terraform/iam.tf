# Two policies: for the role of the instances, and for the control plane. `comfyrelay fleet provision --permissions`
# prints the same policies.

locals {
  group_arn = "arn:aws:autoscaling:*:*:autoScalingGroup:*:autoScalingGroupName/${local.group}"
}

data "aws_iam_policy_document" "instance" {
  statement {
    actions   = ["ssm:GetParameter"]
    resources = ["arn:aws:ssm:*:*:parameter${local.secret}"]
  }

  statement {
    actions   = ["autoscaling:CompleteLifecycleAction", "autoscaling:SetInstanceProtection"]
    resources = [local.group_arn]
  }
}

data "aws_iam_policy_document" "control_plane" {
  # AWS cannot restrict these actions to a resource
  statement {
    actions = [
      "autoscaling:DescribeAutoScalingGroups",
      "autoscaling:DescribeScalingActivities",
      "ec2:DescribeInstances",
      "ec2:DescribeSpotPriceHistory",
    ]
    resources = ["*"]
  }

  statement {
    actions   = ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"]
    resources = [local.group_arn]

    condition {
      test     = "StringEquals"
      variable = "autoscaling:ResourceTag/FleetSlug"
      values   = [var.fleet]
    }
  }

  statement {
    actions   = ["cloudwatch:PutMetricData"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "cloudwatch:namespace"
      values   = [var.cloudwatch_namespace]
    }
  }
}

data "aws_iam_policy_document" "assume_role" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "instance" {
  count              = var.instance_profile == null ? 1 : 0
  name               = local.prefix
  assume_role_policy = data.aws_iam_policy_document.assume_role.json
  tags               = local.tags
}

resource "aws_iam_role_policy" "instance" {
  count  = var.instance_profile == null ? 1 : 0
  name   = local.prefix
  role   = aws_iam_role.instance[0].name
  policy = data.aws_iam_policy_document.instance.json
}

resource "aws_iam_instance_profile" "instance" {
  count = var.instance_profile == null ? 1 : 0
  name  = local.prefix
  role  = aws_iam_role.instance[0].name
  tags  = local.tags
}

resource "aws_iam_policy" "control_plane" {
  name        = "${local.prefix}-control-plane"
  description = "Lets ComfyRelay scale ${local.group}"
  policy      = data.aws_iam_policy_document.control_plane.json
  tags        = local.tags
}
