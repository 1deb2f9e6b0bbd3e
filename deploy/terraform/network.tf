# Workers only open connections: to the server, object storage and AWS.

data "aws_subnet" "first" {
  count = length(var.security_groups) == 0 ? 1 : 0
  id    = var.subnets[0]
}

resource "aws_security_group" "instance" {
  count       = length(var.security_groups) == 0 ? 1 : 0
  name        = local.prefix
  description = "ComfyRelay workers of ${local.group}: outgoing traffic only"
  vpc_id      = data.aws_subnet.first[0].vpc_id
  tags        = local.tags

  egress {
    from_port        = 0
    to_port          = 0
    protocol         = "-1"
    cidr_blocks      = ["0.0.0.0/0"]
    ipv6_cidr_blocks = ["::/0"]
  }
}
